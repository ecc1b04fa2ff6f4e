-- +goose Up
CREATE TABLE builds (
    id         TEXT PRIMARY KEY,
    team       TEXT NOT NULL,
    template   TEXT NOT NULL,
    state      TEXT NOT NULL,
    reason     TEXT NOT NULL,
    step       TEXT NOT NULL,
    fraction   REAL NOT NULL,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    ended_at   INTEGER
) STRICT;

CREATE INDEX builds_template ON builds (template, created_at, id);
CREATE INDEX builds_newest ON builds (created_at, id);
