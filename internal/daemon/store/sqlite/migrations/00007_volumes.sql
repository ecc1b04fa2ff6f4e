-- +goose Up
CREATE TABLE volumes (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    team       TEXT NOT NULL,
    size_mib   INTEGER NOT NULL,
    used_bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX volumes_name ON volumes (team, name);
CREATE INDEX volumes_newest ON volumes (created_at, id);

ALTER TABLE sandboxes ADD COLUMN mounts TEXT NOT NULL DEFAULT 'null';
ALTER TABLE snapshots ADD COLUMN mounts TEXT NOT NULL DEFAULT 'null';
