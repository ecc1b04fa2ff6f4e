-- +goose Up
-- Files of the installation, which a server with a database of its own has in its state
-- directory: this table stays empty in this database, and is there since the queries are.
CREATE TABLE files (
    name    TEXT PRIMARY KEY,
    content BLOB NOT NULL
) STRICT;
