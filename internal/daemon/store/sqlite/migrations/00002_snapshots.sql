-- +goose Up
-- Sandboxes of before are no forks, and each is run by the machine of its id.

ALTER TABLE sandboxes ADD COLUMN forked_from TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN snapshot    TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN history     INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN paused_at   INTEGER;
ALTER TABLE sandboxes ADD COLUMN instance    TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN checkpoint  TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN fork_point  TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN origin      TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN root        TEXT NOT NULL DEFAULT '';
UPDATE sandboxes SET instance = id;

-- Not unique: while a merge is written, two records may have one machine.
CREATE INDEX sandboxes_instance ON sandboxes (instance);

CREATE TABLE snapshots (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    team       TEXT NOT NULL,
    sandbox_id TEXT NOT NULL,
    kind       TEXT NOT NULL,
    automatic  INTEGER NOT NULL,
    label      TEXT NOT NULL,
    parent_id  TEXT NOT NULL,
    template   TEXT NOT NULL,
    vcpus      INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL,
    disk_mib   INTEGER NOT NULL,
    max_pids   INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    checkpoint TEXT NOT NULL,
    root       TEXT NOT NULL,
    origin     TEXT NOT NULL,
    base_env   TEXT NOT NULL,
    env        TEXT NOT NULL,
    user       TEXT NOT NULL,
    workdir    TEXT NOT NULL,
    step       INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX snapshots_name ON snapshots (team, name) WHERE name <> '';
CREATE INDEX snapshots_team_created ON snapshots (team, created_at, id);
CREATE INDEX snapshots_sandbox_created ON snapshots (sandbox_id, created_at, id);
