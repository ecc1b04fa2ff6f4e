-- +goose Up
-- The schema as that of SQLite is at the same number. Times are nanoseconds since 1970 in
-- UTC; maps and lists are JSON, as text that stays as it was written. Text is ordered by
-- its bytes, whatever the database's language.

CREATE TABLE sandboxes (
    id                       TEXT COLLATE "C" PRIMARY KEY,
    name                     TEXT COLLATE "C" NOT NULL,
    team                     TEXT COLLATE "C" NOT NULL,
    namespace                TEXT COLLATE "C" NOT NULL,
    metadata                 TEXT COLLATE "C" NOT NULL,
    template                 TEXT COLLATE "C" NOT NULL,
    state                    TEXT COLLATE "C" NOT NULL,
    reason                   TEXT COLLATE "C" NOT NULL,
    vcpus                    BIGINT NOT NULL,
    memory_mib               BIGINT NOT NULL,
    disk_mib                 BIGINT NOT NULL,
    max_pids                 BIGINT NOT NULL,
    env                      TEXT COLLATE "C" NOT NULL,
    base_env                 TEXT COLLATE "C" NOT NULL,
    "user"                   TEXT COLLATE "C" NOT NULL,
    workdir                  TEXT COLLATE "C" NOT NULL,
    lifetime_seconds         BIGINT NOT NULL,
    idle_seconds             BIGINT NOT NULL,
    on_timeout               TEXT COLLATE "C" NOT NULL,
    created_at               BIGINT NOT NULL,
    started_at               BIGINT,
    last_active_at           BIGINT NOT NULL,
    expires_at               BIGINT,
    ended_at                 BIGINT,
    unenforced               TEXT COLLATE "C" NOT NULL,
    boot_id                  TEXT COLLATE "C" NOT NULL,
    held                     BOOLEAN NOT NULL,
    applying                 BOOLEAN NOT NULL,
    forked_from              TEXT COLLATE "C" NOT NULL DEFAULT '',
    snapshot                 TEXT COLLATE "C" NOT NULL DEFAULT '',
    history                  BIGINT NOT NULL DEFAULT 0,
    paused_at                BIGINT,
    instance                 TEXT COLLATE "C" NOT NULL DEFAULT '',
    checkpoint               TEXT COLLATE "C" NOT NULL DEFAULT '',
    fork_point               TEXT COLLATE "C" NOT NULL DEFAULT '',
    origin                   TEXT COLLATE "C" NOT NULL DEFAULT '',
    root                     TEXT COLLATE "C" NOT NULL DEFAULT '',
    network                  TEXT COLLATE "C" NOT NULL DEFAULT 'null',
    bindings                 TEXT COLLATE "C" NOT NULL DEFAULT 'null',
    ports                    TEXT COLLATE "C" NOT NULL DEFAULT 'null',
    paused_lifetime_seconds  BIGINT NOT NULL DEFAULT 0,
    paused_expires_at        BIGINT,
    mounts                   TEXT COLLATE "C" NOT NULL DEFAULT 'null',
    answers                  TEXT COLLATE "C" NOT NULL DEFAULT 'null',
    moments                  TEXT COLLATE "C" NOT NULL DEFAULT 'null'
);
CREATE INDEX sandboxes_team_created ON sandboxes (team, created_at, id);
CREATE INDEX sandboxes_state ON sandboxes (state);
CREATE INDEX sandboxes_instance ON sandboxes (instance);
CREATE UNIQUE INDEX sandboxes_living_name ON sandboxes (team, namespace, name)
    WHERE name <> '' AND state NOT IN ('killed', 'failed');

CREATE TABLE keys (
    id            TEXT COLLATE "C" PRIMARY KEY,
    hash          BYTEA NOT NULL UNIQUE,
    name          TEXT COLLATE "C" NOT NULL,
    team          TEXT COLLATE "C" NOT NULL,
    hint          TEXT COLLATE "C" NOT NULL,
    scopes        TEXT COLLATE "C" NOT NULL,
    created_at    BIGINT NOT NULL,
    expires_at    BIGINT,
    revoked_at    BIGINT,
    last_used_at  BIGINT
);

CREATE TABLE audit (
    id          BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          BIGINT NOT NULL,
    team        TEXT COLLATE "C" NOT NULL,
    key_id      TEXT COLLATE "C" NOT NULL,
    action      TEXT COLLATE "C" NOT NULL,
    sandbox_id  TEXT COLLATE "C" NOT NULL,
    detail      TEXT COLLATE "C" NOT NULL,
    code        TEXT COLLATE "C" NOT NULL
);
CREATE INDEX audit_team ON audit (team, id);
CREATE INDEX audit_sandbox ON audit (sandbox_id, id) WHERE sandbox_id <> '';
CREATE INDEX audit_at ON audit (at);

CREATE TABLE templates (
    name        TEXT COLLATE "C" PRIMARY KEY,
    source      TEXT COLLATE "C" NOT NULL,
    digest      TEXT COLLATE "C" NOT NULL,
    state       TEXT COLLATE "C" NOT NULL,
    reason      TEXT COLLATE "C" NOT NULL,
    size_bytes  BIGINT NOT NULL,
    built_at    BIGINT,
    definition  TEXT COLLATE "C" NOT NULL,
    updated_at  BIGINT NOT NULL
);

CREATE TABLE snapshots (
    id          TEXT COLLATE "C" PRIMARY KEY,
    name        TEXT COLLATE "C" NOT NULL,
    team        TEXT COLLATE "C" NOT NULL,
    sandbox_id  TEXT COLLATE "C" NOT NULL,
    kind        TEXT COLLATE "C" NOT NULL,
    automatic   BOOLEAN NOT NULL,
    label       TEXT COLLATE "C" NOT NULL,
    parent_id   TEXT COLLATE "C" NOT NULL,
    template    TEXT COLLATE "C" NOT NULL,
    vcpus       BIGINT NOT NULL,
    memory_mib  BIGINT NOT NULL,
    disk_mib    BIGINT NOT NULL,
    max_pids    BIGINT NOT NULL,
    size_bytes  BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    checkpoint  TEXT COLLATE "C" NOT NULL,
    root        TEXT COLLATE "C" NOT NULL,
    origin      TEXT COLLATE "C" NOT NULL,
    base_env    TEXT COLLATE "C" NOT NULL,
    env         TEXT COLLATE "C" NOT NULL,
    "user"      TEXT COLLATE "C" NOT NULL,
    workdir     TEXT COLLATE "C" NOT NULL,
    step        BIGINT NOT NULL,
    network     TEXT COLLATE "C" NOT NULL DEFAULT 'null',
    bindings    TEXT COLLATE "C" NOT NULL DEFAULT 'null',
    mounts      TEXT COLLATE "C" NOT NULL DEFAULT 'null',
    namespace   TEXT COLLATE "C" NOT NULL DEFAULT 'default'
);
CREATE INDEX snapshots_team_created ON snapshots (team, created_at, id);
CREATE INDEX snapshots_sandbox_created ON snapshots (sandbox_id, created_at, id);
CREATE UNIQUE INDEX snapshots_name ON snapshots (team, namespace, name) WHERE name <> '';

CREATE TABLE secrets (
    id            TEXT COLLATE "C" PRIMARY KEY,
    name          TEXT COLLATE "C" NOT NULL,
    team          TEXT COLLATE "C" NOT NULL,
    provider      TEXT COLLATE "C" NOT NULL,
    hosts         TEXT COLLATE "C" NOT NULL,
    auth          TEXT COLLATE "C" NOT NULL,
    version       BIGINT NOT NULL,
    created_at    BIGINT NOT NULL,
    rotated_at    BIGINT,
    last_used_at  BIGINT,
    sealed        BYTEA NOT NULL,
    metadata      TEXT COLLATE "C" NOT NULL DEFAULT 'null'
);
CREATE UNIQUE INDEX secrets_name ON secrets (team, name);
CREATE INDEX secrets_team_created ON secrets (team, created_at, id);

CREATE TABLE previews (
    id          TEXT COLLATE "C" PRIMARY KEY,
    sandbox_id  TEXT COLLATE "C" NOT NULL,
    team        TEXT COLLATE "C" NOT NULL,
    port        BIGINT NOT NULL,
    access      TEXT COLLATE "C" NOT NULL,
    wake        BOOLEAN NOT NULL,
    key_hash    BYTEA,
    generation  BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    expires_at  BIGINT
);
CREATE UNIQUE INDEX previews_port ON previews (sandbox_id, port);
CREATE INDEX previews_team ON previews (team);

CREATE TABLE deliveries (
    id           TEXT COLLATE "C" PRIMARY KEY,
    team         TEXT COLLATE "C" NOT NULL,
    sandbox_id   TEXT COLLATE "C" NOT NULL,
    job_id       TEXT COLLATE "C" NOT NULL,
    url          TEXT COLLATE "C" NOT NULL,
    state        TEXT COLLATE "C" NOT NULL,
    attempts     BIGINT NOT NULL,
    status       BIGINT NOT NULL,
    error        TEXT COLLATE "C" NOT NULL,
    created_at   BIGINT NOT NULL,
    next_at      BIGINT,
    ended_at     BIGINT,
    sealed       BYTEA,
    body         BYTEA,
    approval_id  TEXT COLLATE "C" NOT NULL DEFAULT '',
    until        BIGINT
);
CREATE INDEX deliveries_sandbox ON deliveries (sandbox_id, created_at, id);
CREATE INDEX deliveries_open ON deliveries (created_at, id) WHERE ended_at IS NULL;

CREATE TABLE builds (
    id          TEXT COLLATE "C" PRIMARY KEY,
    team        TEXT COLLATE "C" NOT NULL,
    template    TEXT COLLATE "C" NOT NULL,
    state       TEXT COLLATE "C" NOT NULL,
    reason      TEXT COLLATE "C" NOT NULL,
    step        TEXT COLLATE "C" NOT NULL,
    fraction    DOUBLE PRECISION NOT NULL,
    version     BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    ended_at    BIGINT
);
CREATE INDEX builds_template ON builds (template, created_at, id);
CREATE INDEX builds_newest ON builds (created_at, id);

CREATE TABLE volumes (
    id          TEXT COLLATE "C" PRIMARY KEY,
    name        TEXT COLLATE "C" NOT NULL,
    team        TEXT COLLATE "C" NOT NULL,
    size_mib    BIGINT NOT NULL,
    used_bytes  BIGINT NOT NULL,
    created_at  BIGINT NOT NULL
);
CREATE UNIQUE INDEX volumes_name ON volumes (team, name);
CREATE INDEX volumes_newest ON volumes (created_at, id);

CREATE TABLE requests (
    team          TEXT COLLATE "C" NOT NULL,
    key           TEXT COLLATE "C" NOT NULL,
    hash          BYTEA NOT NULL,
    run           TEXT COLLATE "C" NOT NULL,
    created_at    BIGINT NOT NULL,
    status        BIGINT NOT NULL DEFAULT 0,
    content_type  TEXT COLLATE "C" NOT NULL DEFAULT '',
    location      TEXT COLLATE "C" NOT NULL DEFAULT '',
    body          BYTEA,
    PRIMARY KEY (team, key)
);
CREATE INDEX requests_newest ON requests (team, created_at);

CREATE TABLE clock (
    id       BIGINT PRIMARY KEY CHECK (id = 1),
    boot     TEXT COLLATE "C" NOT NULL,
    wall     BIGINT NOT NULL,
    running  BIGINT NOT NULL
);

CREATE TABLE installation (
    id      TEXT COLLATE "C" NOT NULL,
    adopts  BOOLEAN NOT NULL
);

CREATE TABLE named (
    id  TEXT COLLATE "C" PRIMARY KEY
);

CREATE TABLE sessions (
    id            TEXT COLLATE "C" PRIMARY KEY,
    hash          BYTEA NOT NULL UNIQUE,
    key_id        TEXT COLLATE "C" NOT NULL,
    team          TEXT COLLATE "C" NOT NULL,
    client        TEXT COLLATE "C" NOT NULL,
    created_at    BIGINT NOT NULL,
    last_used_at  BIGINT NOT NULL,
    expires_at    BIGINT NOT NULL,
    person        TEXT COLLATE "C" NOT NULL DEFAULT 'null'
);
CREATE INDEX sessions_by_key ON sessions (key_id);

-- The records that a quota counts.
CREATE INDEX sandboxes_living_team ON sandboxes (team) WHERE state NOT IN ('killed', 'failed');

-- Which daemon the database belongs to. One that finds another's token here has lost
-- the database to it.
CREATE TABLE holder (
    id    BIGINT PRIMARY KEY CHECK (id = 1),
    token TEXT NOT NULL
);

INSERT INTO installation (id, adopts) VALUES (replace(gen_random_uuid()::text, '-', ''), false);

-- +goose StatementBegin
CREATE FUNCTION remove_previews() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    DELETE FROM previews WHERE sandbox_id = OLD.id;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER sandboxes_previews AFTER DELETE ON sandboxes FOR EACH ROW EXECUTE FUNCTION remove_previews();

-- What a record names is noted in the table named.

-- +goose StatementBegin
CREATE FUNCTION note_snapshot() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO named SELECT NEW.checkpoint WHERE NEW.checkpoint <> '' ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER named_snapshots AFTER INSERT ON snapshots FOR EACH ROW EXECUTE FUNCTION note_snapshot();

-- +goose StatementBegin
CREATE FUNCTION note_volume() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO named VALUES (NEW.id) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER named_volumes AFTER INSERT ON volumes FOR EACH ROW EXECUTE FUNCTION note_volume();

-- +goose StatementBegin
CREATE FUNCTION note_sandbox() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO named SELECT NEW.checkpoint WHERE NEW.checkpoint <> '' AND (TG_OP = 'INSERT' OR NEW.checkpoint <> OLD.checkpoint)
        ON CONFLICT DO NOTHING;
    INSERT INTO named SELECT NEW.fork_point WHERE NEW.fork_point <> '' AND (TG_OP = 'INSERT' OR NEW.fork_point <> OLD.fork_point)
        ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER named_new AFTER INSERT ON sandboxes FOR EACH ROW WHEN (NEW.checkpoint <> '' OR NEW.fork_point <> '')
    EXECUTE FUNCTION note_sandbox();
CREATE TRIGGER named_changed AFTER UPDATE ON sandboxes FOR EACH ROW
    WHEN (NEW.checkpoint <> OLD.checkpoint OR NEW.fork_point <> OLD.fork_point) EXECUTE FUNCTION note_sandbox();
