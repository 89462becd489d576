//! Storage directories of other versions: those of earlier versions are read, those of newer
//! versions are refused and not changed.

mod fixture;
mod newer;
