-- +goose Up
CREATE TABLE deliveries (
    id         TEXT PRIMARY KEY,
    team       TEXT NOT NULL,
    sandbox_id TEXT NOT NULL,
    job_id     TEXT NOT NULL,
    url        TEXT NOT NULL,
    state      TEXT NOT NULL,
    attempts   INTEGER NOT NULL,
    status     INTEGER NOT NULL,
    error      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    next_at    INTEGER,
    ended_at   INTEGER,
    sealed     BLOB,
    body       BLOB
) STRICT;

CREATE INDEX deliveries_sandbox ON deliveries (sandbox_id, created_at, id);
CREATE INDEX deliveries_open ON deliveries (created_at, id) WHERE ended_at IS NULL;
