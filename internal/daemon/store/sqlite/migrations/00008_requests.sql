-- +goose Up
CREATE TABLE requests (
    team         TEXT NOT NULL,
    key          TEXT NOT NULL,
    hash         BLOB NOT NULL,
    run          TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    status       INTEGER NOT NULL DEFAULT 0,
    content_type TEXT NOT NULL DEFAULT '',
    location     TEXT NOT NULL DEFAULT '',
    body         BLOB,
    PRIMARY KEY (team, key)
) STRICT;

CREATE INDEX requests_newest ON requests (team, created_at);
