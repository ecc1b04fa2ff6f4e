-- +goose Up
ALTER TABLE sandboxes ADD COLUMN answers TEXT NOT NULL DEFAULT 'null';
