-- +goose Up
-- Sandboxes and snapshots of before say nothing of the network: it is open.

ALTER TABLE sandboxes ADD COLUMN network  TEXT NOT NULL DEFAULT 'null';
ALTER TABLE sandboxes ADD COLUMN bindings TEXT NOT NULL DEFAULT 'null';
ALTER TABLE sandboxes ADD COLUMN ports    TEXT NOT NULL DEFAULT 'null';
ALTER TABLE snapshots ADD COLUMN network  TEXT NOT NULL DEFAULT 'null';
ALTER TABLE snapshots ADD COLUMN bindings TEXT NOT NULL DEFAULT 'null';

CREATE TABLE secrets (
    id           TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    team         TEXT NOT NULL,
    provider     TEXT NOT NULL,
    hosts        TEXT NOT NULL,
    auth         TEXT NOT NULL,
    version      INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    rotated_at   INTEGER,
    last_used_at INTEGER,
    sealed       BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX secrets_name ON secrets (team, name);
CREATE INDEX secrets_team_created ON secrets (team, created_at, id);

CREATE TABLE previews (
    id         TEXT PRIMARY KEY,
    sandbox_id TEXT NOT NULL,
    team       TEXT NOT NULL,
    port       INTEGER NOT NULL,
    access     TEXT NOT NULL,
    wake       INTEGER NOT NULL,
    key_hash   BLOB,
    generation INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
) STRICT;

CREATE UNIQUE INDEX previews_port ON previews (sandbox_id, port);
CREATE INDEX previews_team ON previews (team);

-- +goose StatementBegin
CREATE TRIGGER sandboxes_previews AFTER DELETE ON sandboxes BEGIN
    DELETE FROM previews WHERE sandbox_id = OLD.id;
END;
-- +goose StatementEnd
