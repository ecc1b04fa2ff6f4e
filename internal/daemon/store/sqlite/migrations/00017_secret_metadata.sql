-- +goose Up
ALTER TABLE secrets ADD COLUMN metadata TEXT NOT NULL DEFAULT 'null';
