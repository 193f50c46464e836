-- SPDX-License-Identifier: GPL-2.0-or-later
-- A customer pays.
\set w random(1, :warehouses)
\set d random(1, 10)
\set c random(1, 300)
\set amount random(1, 5000)
BEGIN;
UPDATE warehouse SET w_ytd = w_ytd + :amount WHERE w_id = :w;
UPDATE district SET d_ytd = d_ytd + :amount WHERE d_w_id = :w AND d_id = :d;
UPDATE customer SET c_balance = c_balance - :amount, c_payments = c_payments + 1
    WHERE c_w_id = :w AND c_d_id = :d AND c_id = :c;
INSERT INTO history VALUES (:w, :d, :c, now(), :amount);
COMMIT;
