export function ServerPage(_: { id?: string; tab?: string }) { return <p>todo</p>; }
