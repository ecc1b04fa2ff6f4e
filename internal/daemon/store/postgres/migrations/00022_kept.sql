-- +goose Up
-- Automatic checkpoints: the interval, the ids and the size of those that are kept, and the
-- rest about them.
ALTER TABLE sandboxes ADD COLUMN checkpoint_seconds BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN kept_last TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN kept_next TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN kept_bytes BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN kept TEXT COLLATE "C" NOT NULL DEFAULT '{}';

-- +goose StatementBegin
CREATE FUNCTION note_automatic() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO named SELECT NEW.kept_last WHERE NEW.kept_last <> '' ON CONFLICT DO NOTHING;
    INSERT INTO named SELECT NEW.kept_next WHERE NEW.kept_next <> '' ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER named_automatic AFTER UPDATE ON sandboxes FOR EACH ROW
    WHEN (NEW.kept_last <> OLD.kept_last OR NEW.kept_next <> OLD.kept_next) EXECUTE FUNCTION note_automatic();
