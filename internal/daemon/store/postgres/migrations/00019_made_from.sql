-- +goose Up
ALTER TABLE sandboxes ADD COLUMN made_from TEXT COLLATE "C" NOT NULL DEFAULT 'null';
