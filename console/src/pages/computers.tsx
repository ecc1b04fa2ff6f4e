export function ComputersPage(_: { id?: string; tab?: string }) { return <p>todo</p>; }
