-- +goose Up
-- Automatic checkpoints: the interval, the ids and the size of those that are kept, and the
-- rest about them.
ALTER TABLE sandboxes ADD COLUMN checkpoint_seconds INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN kept_last TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN kept_next TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN kept_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN kept TEXT NOT NULL DEFAULT '{}';

-- +goose StatementBegin
CREATE TRIGGER named_automatic AFTER UPDATE ON sandboxes WHEN NEW.kept_last <> OLD.kept_last OR NEW.kept_next <> OLD.kept_next BEGIN
    INSERT OR IGNORE INTO named SELECT NEW.kept_last WHERE NEW.kept_last <> '';
    INSERT OR IGNORE INTO named SELECT NEW.kept_next WHERE NEW.kept_next <> '';
END;
-- +goose StatementEnd
