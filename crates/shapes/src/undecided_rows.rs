//! Undecided rows: rows of one shape that only Postgres can judge.

use std::fmt;
use std::mem;
use std::sync::Arc;

use crate::engine::ShapeEngine;
use crate::follow::RowQuestion;
use crate::shape::Shape;

/// Distinct rows of one shape that Postgres must judge. At most 1,000 rows and 8 MiB.
///
/// Pass it to [`Shapes::decide`](crate::Shapes::decide) or
/// [`Shapes::give_up`](crate::Shapes::give_up). If it is dropped, its rows are returned again by
/// [`Shapes::undecided_rows`](crate::Shapes::undecided_rows).
pub struct UndecidedRows {
    engine: Arc<ShapeEngine>,
    shape: Arc<Shape>,
    /// Generation of the followed shapes.
    generation: u64,
    questions: Vec<Arc<RowQuestion>>,
}

impl UndecidedRows {
    pub(crate) fn new(
        engine: Arc<ShapeEngine>,
        shape: Arc<Shape>,
        generation: u64,
        questions: Vec<Arc<RowQuestion>>,
    ) -> Self {
        UndecidedRows { engine, shape, generation, questions }
    }

    /// Returns the shape. Its [`filter`](Shape::filter) has the clause.
    pub fn shape(&self) -> &Arc<Shape> {
        &self.shape
    }

    /// Returns the number of rows. Never 0.
    #[expect(clippy::len_without_is_empty, reason = "a batch is never empty")]
    pub fn len(&self) -> usize {
        self.questions.len()
    }

    /// Returns the rows. Each has the values of the columns that the clause uses, in the order of
    /// [`Filter::columns`](crate::filter::Filter::columns): the text of Postgres, or `None` for
    /// NULL.
    pub fn rows(&self) -> impl Iterator<Item = Vec<Option<&[u8]>>> {
        self.questions.iter().map(|question| question.values.values())
    }

    /// Returns the rows' values for the database, and the generation for which they are valid.
    pub(crate) fn take(mut self) -> (Arc<Shape>, u64, Vec<Arc<RowQuestion>>) {
        (Arc::clone(&self.shape), self.generation, mem::take(&mut self.questions))
    }
}

impl Drop for UndecidedRows {
    fn drop(&mut self) {
        let questions = mem::take(&mut self.questions);
        if !questions.is_empty() {
            self.engine.following().ask_again(self.generation, self.shape.id, questions);
        }
    }
}

impl fmt::Debug for UndecidedRows {
    /// Never shows values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = f.debug_struct("UndecidedRows");
        rows.field("shape", &self.shape.handle()).field("len", &self.questions.len()).finish_non_exhaustive()
    }
}
