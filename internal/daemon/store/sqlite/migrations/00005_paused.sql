-- +goose Up
ALTER TABLE sandboxes ADD COLUMN paused_lifetime_seconds INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN paused_expires_at INTEGER;
