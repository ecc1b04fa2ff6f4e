export default function App() {
  return (
    <main>
      <h1>React</h1>
      <p>
        This page is in <code>src/App.tsx</code>.
      </p>
    </main>
  )
}
