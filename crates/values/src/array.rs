//! Array values: rectangular, of any bounds, with elements that may be NULL (arrayfuncs.c).

use std::cmp::Ordering;

use super::sql_value::SqlValue;
use crate::eval_error::EvalError;

/// Maximum number of dimensions of an array (MAXDIM).
pub(crate) const MAX_DIMENSIONS: usize = 6;

/// The end of an array at which an element is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayEnd {
    /// Before the first element.
    Front,
    /// After the last element.
    Back,
}

/// An array. An empty array has no dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    pub(crate) dimensions: Vec<Dimension>,
    /// Elements in row-major order.
    pub(crate) items: Vec<Option<SqlValue<'static>>>,
    /// The elements are distinct and in order, NULL last; see `array_set.rs`.
    pub(crate) is_set: bool,
}

/// A dimension of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dimension {
    /// Number of elements.
    pub length: usize,
    /// Index of the first element.
    pub lower: i32,
}

impl Array {
    /// An array without elements.
    pub const EMPTY: Array = Array { dimensions: Vec::new(), items: Vec::new(), is_set: false };

    /// Returns an array of one dimension with lower bound 1.
    pub fn list(items: Vec<Option<SqlValue<'static>>>) -> Self {
        let dimensions = match items.len() {
            0 => Vec::new(),
            length => vec![Dimension { length, lower: 1 }],
        };
        Array::of(dimensions, items)
    }

    pub(crate) fn of(dimensions: Vec<Dimension>, items: Vec<Option<SqlValue<'static>>>) -> Self {
        Array { dimensions, items, is_set: false }
    }

    /// Returns the dimensions, from the outermost; none if the array is empty.
    pub fn dimensions(&self) -> &[Dimension] {
        &self.dimensions
    }

    /// Returns the elements in row-major order. `None` is NULL.
    #[inline]
    pub fn items(&self) -> &[Option<SqlValue<'static>>] {
        &self.items
    }

    /// Returns the elements, to replace them.
    pub fn items_mut(&mut self) -> &mut [Option<SqlValue<'static>>] {
        self.is_set = false;
        &mut self.items
    }

    /// Returns the elements in row-major order. `None` is NULL.
    pub fn into_items(self) -> Vec<Option<SqlValue<'static>>> {
        self.items
    }

    /// Replaces each element that is not NULL.
    ///
    /// # Errors
    /// Fails if `change` fails.
    pub fn try_map<E>(
        self,
        mut change: impl FnMut(SqlValue<'static>) -> Result<Option<SqlValue<'static>>, E>,
    ) -> Result<Self, E> {
        let items = self.items.into_iter().map(|item| item.map_or(Ok(None), &mut change));
        Ok(Array::of(self.dimensions, items.collect::<Result<_, _>>()?))
    }

    /// Removes elements of an array of one dimension. Its lower bound stays, unless it gets empty.
    ///
    /// # Panics
    /// Panics if the array has several dimensions.
    pub fn retain(&mut self, keep: impl FnMut(&Option<SqlValue<'static>>) -> bool) {
        assert!(self.dimensions.len() <= 1, "an array of several dimensions is rectangular");
        self.items.retain(keep);
        match self.dimensions.first_mut() {
            Some(only) if !self.items.is_empty() => only.length = self.items.len(),
            _ => *self = Array::EMPTY,
        }
    }

    /// Nests arrays of the same dimensions, as `ARRAY[a, b]` does. NULL counts as an empty array.
    ///
    /// # Errors
    /// Fails if the dimensions differ, or are too many.
    pub fn nested(arrays: Vec<Array>) -> Result<Self, EvalError> {
        let mismatch = || {
            EvalError::new(
                "2202E",
                "multidimensional arrays must have array expressions with matching dimensions",
            )
        };
        let first = arrays.first().map(|array| array.dimensions.clone()).unwrap_or_default();
        if arrays.iter().any(|array| array.dimensions != first) {
            return Err(mismatch());
        }
        if first.is_empty() {
            return Ok(Array::EMPTY);
        }
        if first.len() >= MAX_DIMENSIONS {
            return Err(EvalError::new(
                "54000",
                "number of array dimensions exceeds the maximum allowed (6)",
            ));
        }
        let mut dimensions = vec![Dimension { length: arrays.len(), lower: 1 }];
        dimensions.extend(first);
        Ok(Array::of(dimensions, arrays.into_iter().flat_map(|array| array.items).collect()))
    }

    /// Compares elements in order, then dimensions. `ignore_blanks`: as bpchar.
    pub fn compare(&self, other: &Array, ignore_blanks: bool) -> Ordering {
        for pair in self.items.iter().zip(&other.items) {
            let order = match pair {
                (Some(left), Some(right)) => left.compare(right, ignore_blanks),
                (None, None) => Ordering::Equal,
                // Here NULL equals NULL and is greater than any value.
                (left, right) => left.is_none().cmp(&right.is_none()),
            };
            if order != Ordering::Equal {
                return order;
            }
        }
        self.compare_dimensions(other)
    }

    /// Orders by number of elements, number of dimensions, each length, then each bound
    /// (array_cmp).
    fn compare_dimensions(&self, other: &Array) -> Ordering {
        let lengths =
            |array: &Array| array.dimensions.iter().map(|dimension| dimension.length).collect::<Vec<_>>();
        let bounds =
            |array: &Array| array.dimensions.iter().map(|dimension| dimension.lower).collect::<Vec<_>>();
        let items = self.items.len().cmp(&other.items.len());
        let dimensions = self.dimensions.len().cmp(&other.dimensions.len());
        items
            .then(dimensions)
            .then_with(|| lengths(self).cmp(&lengths(other)))
            .then_with(|| bounds(self).cmp(&bounds(other)))
    }

    /// Concatenates (array_cat).
    ///
    /// # Errors
    /// Fails if the dimensions don't fit.
    pub fn concat(&self, other: &Array) -> Result<Self, EvalError> {
        let mismatch = || EvalError::new("2202E", "cannot concatenate incompatible arrays");
        if other.dimensions.is_empty() {
            return Ok(self.clone());
        }
        if self.dimensions.is_empty() {
            return Ok(other.clone());
        }
        let (left, right) = (&self.dimensions, &other.dimensions);
        let mut dimensions;
        if left.len() == right.len() {
            if left[1..] != right[1..] {
                return Err(mismatch());
            }
            dimensions = left.clone();
            dimensions[0].length += right[0].length;
        } else if left.len() + 1 == right.len() {
            if left[..] != right[1..] {
                return Err(mismatch());
            }
            dimensions = right.clone();
            dimensions[0].length += 1;
        } else if left.len() == right.len() + 1 {
            if left[1..] != right[..] {
                return Err(mismatch());
            }
            dimensions = left.clone();
            dimensions[0].length += 1;
        } else {
            return Err(mismatch());
        }
        let items = self.items.iter().chain(&other.items).cloned().collect();
        Ok(Array::of(dimensions, items))
    }

    /// Adds an element: array_append at the back, array_prepend at the front.
    ///
    /// # Errors
    /// Fails if the array has several dimensions.
    pub fn push(mut self, item: Option<SqlValue<'static>>, end: ArrayEnd) -> Result<Self, EvalError> {
        match self.dimensions[..] {
            [] => Ok(Array::list(vec![item])),
            [ref mut only] => {
                only.length += 1;
                self.is_set = false;
                match end {
                    ArrayEnd::Back => self.items.push(item),
                    ArrayEnd::Front => self.items.insert(0, item),
                }
                Ok(self)
            }
            _ => Err(EvalError::new("22000", "argument must be empty or one-dimensional array")),
        }
    }

    /// Returns `array[i][j]`; `None` if an index is out of bounds.
    pub fn at(&self, indexes: &[i32]) -> Option<&SqlValue<'static>> {
        if indexes.len() != self.dimensions.len() {
            return None;
        }
        let mut position = 0;
        for (index, dimension) in indexes.iter().zip(&self.dimensions) {
            let offset = usize::try_from(i64::from(*index) - i64::from(dimension.lower)).ok()?;
            if offset >= dimension.length {
                return None;
            }
            position = position * dimension.length + offset;
        }
        self.items.get(position)?.as_ref()
    }

    /// Returns `array[a:b][c:d]`, with lower bounds 1; empty if the bounds do not overlap the
    /// array. A bound of `None` is that of the array.
    pub fn slice(&self, bounds: &[(Option<i32>, Option<i32>)]) -> Self {
        if self.dimensions.is_empty() || bounds.len() > self.dimensions.len() {
            return Array::EMPTY;
        }
        let mut ranges = Vec::new();
        for (position, dimension) in self.dimensions.iter().enumerate() {
            let (from, to) = bounds.get(position).copied().unwrap_or((None, None));
            let first = i64::from(dimension.lower);
            let last = first + dimension.length as i64 - 1;
            let from = from.map_or(first, i64::from).max(first);
            let to = to.map_or(last, i64::from).min(last);
            if from > to {
                return Array::EMPTY;
            }
            ranges.push((from - first) as usize..=(to - first) as usize);
        }
        let mut positions = vec![0];
        for (range, dimension) in ranges.iter().zip(&self.dimensions) {
            let step = |position: &usize| {
                range.clone().map(|offset| position * dimension.length + offset).collect::<Vec<_>>()
            };
            positions = positions.iter().flat_map(step).collect();
        }
        let dimensions = ranges.iter().map(|range| Dimension { length: range.clone().count(), lower: 1 });
        let dimensions = dimensions.collect();
        let items = positions.into_iter().map(|position| self.items[position].clone());
        Array::of(dimensions, items.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scalar::{Scalar, ValueType};

    fn ints(text: &str) -> Array {
        Array::parse(text, Scalar::Int4, false).unwrap()
    }

    fn written(array: Array) -> String {
        SqlValue::array(array).into_text(ValueType::Array(Scalar::Int4)).into_owned()
    }

    #[test]
    fn indexes_and_slices_follow_the_bounds() {
        let array = ints("[0:2]={5,6,7}");
        assert_eq!(array.at(&[0]), Some(&SqlValue::Int(5)));
        assert_eq!(array.at(&[3]), None);
        assert_eq!(array.at(&[1, 1]), None);
        assert_eq!(written(array.slice(&[(Some(1), None)])), "{6,7}");
        let square = ints("{{1,2},{3,4}}");
        assert_eq!(written(square.slice(&[(Some(2), Some(2))])), "{{3,4}}");
        assert_eq!(written(square.slice(&[(None, None), (Some(2), Some(9))])), "{{2},{4}}");
    }
}
