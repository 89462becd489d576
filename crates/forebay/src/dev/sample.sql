CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, city text NOT NULL);
INSERT INTO customers VALUES
  (1, 'Ada', 'London'), (2, 'Blaise', 'Paris'), (3, 'Chien-Shiung', 'Shanghai'), (4, 'Dmitri', 'Tobolsk'),
  (5, 'Emmy', 'Erlangen'), (6, 'Fatima', 'Fez'), (7, 'Grace', 'New York'), (8, 'Hedy', 'Vienna');
CREATE TABLE products (id int PRIMARY KEY, name text NOT NULL, price numeric(8, 2) NOT NULL);
INSERT INTO products VALUES
  (1, 'Abacus', 24.00), (2, 'Compass', 18.50), (3, 'Kite', 12.90), (4, 'Lantern', 39.00), (5, 'Prism', 27.40),
  (6, 'Sextant', 149.00), (7, 'Slide rule', 32.00), (8, 'Telescope', 210.00);
CREATE TABLE orders (
  id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  customer text NOT NULL,
  product text NOT NULL,
  quantity int NOT NULL,
  total numeric(8, 2) NOT NULL,
  status text NOT NULL DEFAULT 'placed',
  changed_at timestamptz NOT NULL DEFAULT now()
);
