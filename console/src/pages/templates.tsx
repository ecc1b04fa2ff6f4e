export function TemplatesPage(_: { id?: string; tab?: string }) { return <p>todo</p>; }
