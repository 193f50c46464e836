-- SPDX-License-Identifier: GPL-2.0-or-later
-- The oldest order of each district of a warehouse is delivered.  One delivery at a
-- time for each warehouse, as the standard's queue of them does it.
\set w random(1, :warehouses)
BEGIN;
SELECT pg_advisory_xact_lock(:w);
WITH oldest AS (
    SELECT no_d_id AS d, min(no_o_id) AS o FROM new_order WHERE no_w_id = :w GROUP BY no_d_id
), taken AS (
    DELETE FROM new_order USING oldest WHERE no_w_id = :w AND no_d_id = d AND no_o_id = o
), carried AS (
    UPDATE orders SET o_carrier = 1 FROM oldest WHERE o_w_id = :w AND o_d_id = d AND o_id = o
        RETURNING o_d_id, o_c_id
), delivered AS (
    UPDATE order_line SET ol_delivered = now() FROM oldest
        WHERE ol_w_id = :w AND ol_d_id = d AND ol_o_id = o RETURNING ol_d_id, ol_amount
)
UPDATE customer SET c_deliveries = c_deliveries + 1, c_balance = c_balance +
        (SELECT sum(ol_amount) FROM delivered WHERE ol_d_id = c_d_id)
    FROM carried WHERE c_w_id = :w AND c_d_id = o_d_id AND c_id = o_c_id;
COMMIT;
