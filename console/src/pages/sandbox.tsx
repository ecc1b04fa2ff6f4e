export function SandboxPage(_: { id?: string; tab?: string }) { return <p>todo</p>; }
