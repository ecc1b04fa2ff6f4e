-- +goose Up
ALTER TABLE sandboxes ADD COLUMN made_from TEXT NOT NULL DEFAULT 'null';
