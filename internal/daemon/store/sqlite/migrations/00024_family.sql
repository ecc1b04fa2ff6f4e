-- +goose Up
ALTER TABLE sandboxes ADD COLUMN family TEXT NOT NULL DEFAULT '';
