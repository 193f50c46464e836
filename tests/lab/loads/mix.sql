-- SPDX-License-Identifier: GPL-2.0-or-later
-- Twelve reads and four writes, as sysbench's OLTP test has them: points, ranges, two updates, a
-- row deleted and put back.  In one pipeline, so that the disk and not the processor is measured.
-- Each write has a third of the rows, so that two transactions take their locks in one order.
\set a random(1, :third)
\set b random(1, :third)
\set c random(1, :third)
\set d random(1, :third)
\set e :third + :a
\set f :third + :b
\set g :third + :c
\set h 2 * :third + :a
\set i 2 * :third + :b
\set u :third + :d
\set r 2 * :third + :d
\set a99 :a + 99
\set b99 :b + 99
\set c99 :c + 99
\startpipeline
BEGIN;
SELECT abalance FROM pgbench_accounts WHERE aid = :a;
SELECT abalance FROM pgbench_accounts WHERE aid = :b;
SELECT abalance FROM pgbench_accounts WHERE aid = :c;
SELECT abalance FROM pgbench_accounts WHERE aid = :d;
SELECT abalance FROM pgbench_accounts WHERE aid = :e;
SELECT abalance FROM pgbench_accounts WHERE aid = :f;
SELECT abalance FROM pgbench_accounts WHERE aid = :g;
SELECT abalance FROM pgbench_accounts WHERE aid = :h;
SELECT abalance FROM pgbench_accounts WHERE aid = :i;
SELECT sum(abalance) FROM pgbench_accounts WHERE aid BETWEEN :a AND :a99;
SELECT filler FROM pgbench_accounts WHERE aid BETWEEN :b AND :b99 ORDER BY abalance LIMIT 1;
SELECT count(DISTINCT abalance) FROM pgbench_accounts WHERE aid BETWEEN :c AND :c99;
UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :a;
UPDATE pgbench_accounts SET filler = 'changed' WHERE aid = :u;
DELETE FROM pgbench_accounts WHERE aid = :r;
INSERT INTO pgbench_accounts VALUES (:r, 1, 0, '') ON CONFLICT DO NOTHING;
COMMIT;
\endpipeline
