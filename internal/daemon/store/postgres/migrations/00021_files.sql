-- +goose Up
CREATE TABLE files (
    name    TEXT PRIMARY KEY,
    content BYTEA NOT NULL
);

-- Epoch is that of the present daemon, and larger than those before. Fence_ms is within which
-- time it stops when it cannot reach the database; 0 is that it does not. Released says that it
-- has stopped.
ALTER TABLE holder ADD COLUMN name TEXT NOT NULL DEFAULT '';
ALTER TABLE holder ADD COLUMN epoch BIGINT NOT NULL DEFAULT 0;
ALTER TABLE holder ADD COLUMN fence_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE holder ADD COLUMN released BOOLEAN NOT NULL DEFAULT false;
