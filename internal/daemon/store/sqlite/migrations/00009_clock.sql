-- +goose Up
-- The last comparison of the wall clock with the time that the machine has run.
CREATE TABLE clock (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    boot    TEXT NOT NULL,
    wall    INTEGER NOT NULL,
    running INTEGER NOT NULL
) STRICT;
