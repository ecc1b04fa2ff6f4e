-- +goose Up
-- The key of what is in the object store, sealed like the values of secrets.
CREATE TABLE object_key (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    sealed BLOB NOT NULL
) STRICT;
