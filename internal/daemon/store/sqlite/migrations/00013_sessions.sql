-- +goose Up
CREATE TABLE sessions (
    id           TEXT PRIMARY KEY,
    hash         BLOB NOT NULL UNIQUE,
    key_id       TEXT NOT NULL,
    team         TEXT NOT NULL,
    client       TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    last_used_at INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL
) STRICT;

CREATE INDEX sessions_by_key ON sessions (key_id);
