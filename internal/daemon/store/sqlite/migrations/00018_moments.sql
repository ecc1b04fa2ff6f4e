-- +goose Up
ALTER TABLE sandboxes ADD COLUMN moments TEXT NOT NULL DEFAULT 'null';
-- A pause that lasts is a moment, whenever it began.
UPDATE sandboxes SET moments = json_array(json_object('kind', 'paused', 'at', strftime('%Y-%m-%dT%H:%M:%SZ', paused_at / 1000000000, 'unixepoch')))
    WHERE state = 'paused' AND paused_at IS NOT NULL;
