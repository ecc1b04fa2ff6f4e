export function ComparePage(_: { id?: string; tab?: string }) { return <p>todo</p>; }
