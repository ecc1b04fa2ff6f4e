-- +goose Up
CREATE TABLE object_key (
    id     BIGINT PRIMARY KEY CHECK (id = 1),
    sealed BYTEA NOT NULL
);
