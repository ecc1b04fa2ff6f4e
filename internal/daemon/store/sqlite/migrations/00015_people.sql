-- +goose Up
ALTER TABLE sessions ADD COLUMN person TEXT NOT NULL DEFAULT 'null';
