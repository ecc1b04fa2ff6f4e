export default function Page() {
  return (
    <main>
      <h1>Next.js</h1>
      <p>
        This page is in <code>app/page.tsx</code>.
      </p>
    </main>
  )
}
