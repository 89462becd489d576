// Page that shows the rows of a shape with `useShape`. The test selects the shape.
import { ShapeStream } from '@electric-sql/client';
import { useShape } from '@electric-sql/react';
import { createRoot } from 'react-dom/client';

const root = createRoot(document.getElementById('root'));

function Rows({ options }) {
  const { data, isLoading, isError, error } = useShape(options);
  if (isError) return <p id="state">{`error: ${error.message}`}</p>;
  const rows = [...data].sort((one, other) => one.id - other.id);
  return (
    <>
      <p id="state">{isLoading ? 'loading' : 'ready'}</p>
      <ul>
        {rows.map((row) => (
          <li key={row.id}>{`${row.id}: ${row.title}`}</li>
        ))}
      </ul>
    </>
  );
}

/** Shows the shape of these client options. */
window.show = (options) => root.render(<Rows options={options} />);

/** Returns the state and the rows that the page shows. */
window.read = () => ({
  state: document.getElementById('state')?.textContent,
  rows: [...document.querySelectorAll('li')].map((row) => row.textContent),
});

/** Requests a subset of a shape and returns its values. */
window.subset = async (options, params) => {
  const { data } = await new ShapeStream({ ...options, log: 'changes_only' }).fetchSnapshot(params);
  return data.map(({ value }) => value);
};
