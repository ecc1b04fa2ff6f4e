-- +goose Up
ALTER TABLE deliveries ADD COLUMN approval_id TEXT NOT NULL DEFAULT '';
ALTER TABLE deliveries ADD COLUMN until INTEGER;
