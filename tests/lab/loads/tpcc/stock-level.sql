-- SPDX-License-Identifier: GPL-2.0-or-later
-- How many items of a district's last 20 orders run low; only reads.
\set w random(1, :warehouses)
\set d random(1, 10)
SELECT count(DISTINCT s_i_id) FROM order_line, stock, district
    WHERE d_w_id = :w AND d_id = :d AND ol_w_id = :w AND ol_d_id = :d
        AND ol_o_id >= d_next_o_id - 20 AND s_w_id = :w AND s_i_id = ol_i_id AND s_quantity < 15;
