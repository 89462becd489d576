//! The parts of the program.
