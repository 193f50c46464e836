-- SPDX-License-Identifier: GPL-2.0-or-later
-- A customer orders 5 to 15 items.  They are ordered by number, so that two orders
-- take their locks in the same order.
\set w random(1, :warehouses)
\set d random(1, 10)
\set c random(1, 300)
\set lines random(5, 15)
\set first random(1, 10000)
\set step random(1, 600)
BEGIN;
SELECT w_tax, c_discount, c_last, c_credit FROM warehouse, customer
    WHERE w_id = :w AND c_w_id = :w AND c_d_id = :d AND c_id = :c;
UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = :w AND d_id = :d
    RETURNING d_next_o_id - 1 AS o \gset
INSERT INTO orders VALUES (:w, :d, :o, :c, now(), NULL, :lines);
INSERT INTO new_order VALUES (:w, :d, :o);
INSERT INTO order_line SELECT :w, :d, :o, row_number() OVER (ORDER BY i_id), i_id, NULL, 5, 5 * i_price
    FROM item WHERE i_id IN (SELECT 1 + (:first + n * :step) % 10000 FROM generate_series(1, :lines) n);
SELECT s_i_id FROM stock WHERE s_w_id = :w AND s_i_id IN
    (SELECT ol_i_id FROM order_line WHERE ol_w_id = :w AND ol_d_id = :d AND ol_o_id = :o)
    ORDER BY s_i_id FOR UPDATE;
UPDATE stock SET s_quantity = CASE WHEN s_quantity > 14 THEN s_quantity - 5 ELSE s_quantity + 86 END,
        s_ytd = s_ytd + 5, s_order_cnt = s_order_cnt + 1
    FROM order_line WHERE ol_w_id = :w AND ol_d_id = :d AND ol_o_id = :o
        AND s_w_id = :w AND s_i_id = ol_i_id;
COMMIT;
