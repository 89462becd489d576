//! Folders of other versions: earlier ones are read as they are, newer ones are refused and left
//! alone.

mod fixture;
mod newer;
