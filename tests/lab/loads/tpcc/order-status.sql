-- SPDX-License-Identifier: GPL-2.0-or-later
-- What became of a customer's last order; only reads.
\set w random(1, :warehouses)
\set d random(1, 10)
\set c random(1, 300)
BEGIN;
SELECT c_balance, c_last FROM customer WHERE c_w_id = :w AND c_d_id = :d AND c_id = :c;
SELECT ol_i_id, ol_quantity, ol_amount, ol_delivered FROM order_line
    WHERE ol_w_id = :w AND ol_d_id = :d AND ol_o_id =
        (SELECT max(o_id) FROM orders WHERE o_w_id = :w AND o_d_id = :d AND o_c_id = :c);
COMMIT;
