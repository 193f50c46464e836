-- SPDX-License-Identifier: GPL-2.0-or-later
-- Tables and rows of the mix, for psql -v warehouses=N: after TPC-C, a tenth as
-- many items and customers, so that it is made in seconds.
BEGIN;
CREATE TABLE warehouse (w_id int PRIMARY KEY, w_name text, w_tax numeric, w_ytd numeric);
CREATE TABLE district (d_w_id int, d_id int, d_tax numeric, d_ytd numeric, d_next_o_id int,
    PRIMARY KEY (d_w_id, d_id));
CREATE TABLE customer (c_w_id int, c_d_id int, c_id int, c_last text, c_credit text,
    c_discount numeric, c_balance numeric, c_payments int, c_deliveries int, c_data text,
    PRIMARY KEY (c_w_id, c_d_id, c_id));
CREATE TABLE item (i_id int PRIMARY KEY, i_name text, i_price numeric, i_data text);
CREATE TABLE stock (s_w_id int, s_i_id int, s_quantity int, s_ytd int, s_order_cnt int, s_data text,
    PRIMARY KEY (s_w_id, s_i_id));
CREATE TABLE orders (o_w_id int, o_d_id int, o_id int, o_c_id int, o_entry timestamptz,
    o_carrier int, o_lines int, PRIMARY KEY (o_w_id, o_d_id, o_id));
CREATE TABLE new_order (no_w_id int, no_d_id int, no_o_id int,
    PRIMARY KEY (no_w_id, no_d_id, no_o_id));
CREATE TABLE order_line (ol_w_id int, ol_d_id int, ol_o_id int, ol_number int, ol_i_id int,
    ol_delivered timestamptz, ol_quantity int, ol_amount numeric,
    PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number));
CREATE TABLE history (h_w_id int, h_d_id int, h_c_id int, h_date timestamptz, h_amount numeric);

INSERT INTO warehouse SELECT w, 'warehouse ' || w, 0.1, 0 FROM generate_series(1, :warehouses) w;
INSERT INTO district SELECT w, d, 0.1, 0, 31
    FROM generate_series(1, :warehouses) w, generate_series(1, 10) d;
INSERT INTO customer SELECT w, d, c, 'name' || c % 100, 'GC', 0.1, -10, 1, 0, repeat('c', 300)
    FROM generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, 300) c;
INSERT INTO item SELECT i, 'item ' || i, 1 + i % 100, repeat('i', 30)
    FROM generate_series(1, 10000) i;
INSERT INTO stock SELECT w, i, 50 + i % 50, 0, 0, repeat('s', 200)
    FROM generate_series(1, :warehouses) w, generate_series(1, 10000) i;
INSERT INTO orders SELECT w, d, o, 1 + o * 7 % 300, now(), CASE WHEN o < 21 THEN 1 END, 10
    FROM generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, 30) o;
INSERT INTO new_order SELECT w, d, o
    FROM generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(21, 30) o;
INSERT INTO order_line SELECT w, d, o, n, 1 + (o * 331 + n * 17) % 10000, NULL, 5, 10
    FROM generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, 30) o,
        generate_series(1, 10) n;
CREATE INDEX customer_last ON customer (c_w_id, c_d_id, c_last);
CREATE INDEX orders_customer ON orders (o_w_id, o_d_id, o_c_id, o_id);
COMMIT;
ANALYZE;
