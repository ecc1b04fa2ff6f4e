-- +goose Up
-- The id that a state directory's other parts must have too. A database that had
-- records before there were ids takes over parts that have none.
CREATE TABLE installation (
    id     TEXT NOT NULL,
    adopts INTEGER NOT NULL
) STRICT;

INSERT INTO installation (id, adopts) SELECT lower(hex(randomblob(16))),
    EXISTS (SELECT 1 FROM sandboxes) OR EXISTS (SELECT 1 FROM snapshots) OR EXISTS (SELECT 1 FROM volumes);
