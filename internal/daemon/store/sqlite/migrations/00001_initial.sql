-- +goose Up
-- Times are nanoseconds since 1970 in UTC; maps and lists are JSON.

CREATE TABLE sandboxes (
    id               TEXT PRIMARY KEY,
    name             TEXT NOT NULL,
    team             TEXT NOT NULL,
    namespace        TEXT NOT NULL,
    metadata         TEXT NOT NULL,
    template         TEXT NOT NULL,
    state            TEXT NOT NULL,
    reason           TEXT NOT NULL,
    vcpus            INTEGER NOT NULL,
    memory_mib       INTEGER NOT NULL,
    disk_mib         INTEGER NOT NULL,
    max_pids         INTEGER NOT NULL,
    env              TEXT NOT NULL,
    base_env         TEXT NOT NULL,
    user             TEXT NOT NULL,
    workdir          TEXT NOT NULL,
    lifetime_seconds INTEGER NOT NULL,
    idle_seconds     INTEGER NOT NULL,
    on_timeout       TEXT NOT NULL,
    created_at       INTEGER NOT NULL,
    started_at       INTEGER,
    last_active_at   INTEGER NOT NULL,
    expires_at       INTEGER,
    ended_at         INTEGER,
    unenforced       TEXT NOT NULL,
    boot_id          TEXT NOT NULL,
    held             INTEGER NOT NULL,
    applying         INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX sandboxes_living_name ON sandboxes (team, name)
    WHERE name <> '' AND state NOT IN ('killed', 'failed');
CREATE INDEX sandboxes_team_created ON sandboxes (team, created_at, id);
CREATE INDEX sandboxes_state ON sandboxes (state);

CREATE TABLE keys (
    id           TEXT PRIMARY KEY,
    hash         BLOB NOT NULL UNIQUE,
    name         TEXT NOT NULL,
    team         TEXT NOT NULL,
    hint         TEXT NOT NULL,
    scopes       TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    revoked_at   INTEGER,
    last_used_at INTEGER
) STRICT;

-- AUTOINCREMENT: ids grow for ever, so that a cursor stays good after a trim.
CREATE TABLE audit (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    team       TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    action     TEXT NOT NULL,
    sandbox_id TEXT NOT NULL,
    detail     TEXT NOT NULL,
    code       TEXT NOT NULL
) STRICT;

CREATE INDEX audit_team ON audit (team, id);
CREATE INDEX audit_sandbox ON audit (sandbox_id, id) WHERE sandbox_id <> '';
CREATE INDEX audit_at ON audit (at);

CREATE TABLE templates (
    name       TEXT PRIMARY KEY,
    source     TEXT NOT NULL,
    digest     TEXT NOT NULL,
    state      TEXT NOT NULL,
    reason     TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    built_at   INTEGER,
    definition TEXT NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;
