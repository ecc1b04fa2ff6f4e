// What was dropped on the page: files, and folders with all that is in them.

/** The most files and empty folders that are sent of one drop. */
export const MOST = 2000;

export interface Dropped {
  files: { path: string; file: File }[];
  /** The paths of folders that have nothing in them: all others come with their files. */
  empty: string[];
}

/** dropped finds what is in entries, or nothing if that is too much to send. */
export async function dropped(entries: readonly FileSystemEntry[]): Promise<Dropped | undefined> {
  const found: Dropped = { files: [], empty: [] };
  const waiting = [...entries];
  for (let e = waiting.shift(); e; e = waiting.shift()) {
    const path = e.fullPath.replace(/^\//, "");
    if (e.isFile) {
      found.files.push({ path, file: await new Promise<File>((ok, no) => (e as FileSystemFileEntry).file(ok, no)) });
    } else {
      const inside = await list(e as FileSystemDirectoryEntry);
      if (!inside.length) found.empty.push(path);
      waiting.unshift(...inside);
    }
    if (found.files.length + found.empty.length > MOST) return undefined;
  }
  return found;
}

/** list reads a folder, and of a very large one no more than is too much. */
async function list(folder: FileSystemDirectoryEntry): Promise<FileSystemEntry[]> {
  const reader = folder.createReader();
  const all: FileSystemEntry[] = [];
  while (all.length <= MOST) {
    const part = await new Promise<FileSystemEntry[]>((ok, no) => reader.readEntries(ok, no));
    if (!part.length) break;
    all.push(...part);
  }
  return all;
}
