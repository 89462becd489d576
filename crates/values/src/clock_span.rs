//! Spans between timestamps: age, date_bin (timestamp.c).

use crate::calendar::{Day, MICROS_PER_DAY};
use crate::datetime::Timestamp;
use crate::eval_error::EvalError;
use crate::interval::Interval;

impl Timestamp {
    /// Returns the span since another timestamp in years, months, days and time, as age() does.
    ///
    /// # Errors
    /// Fails if a timestamp is infinite: versions of Postgres differ (`0A000`).
    pub fn age(self, other: Self) -> Result<Interval, EvalError> {
        if !self.is_finite() || !other.is_finite() {
            // Versions differ: an error before 17, possibly an infinite interval since 17.
            return Err(EvalError::new("0A000", "the age of an infinite timestamp"));
        }
        let (earlier, later, sign) = if self < other { (self, other, -1) } else { (other, self, 1) };
        let ((early_days, early_micros), (late_days, late_micros)) = (earlier.split(), later.split());
        let (early, late) = (Day::of_number(early_days), Day::of_number(late_days));
        let mut micros = late_micros - early_micros;
        let mut days = late.day - early.day;
        let mut months = (late.year - early.year) * 12 + late.month - early.month;
        if micros < 0 {
            micros += MICROS_PER_DAY;
            days -= 1;
        }
        while days < 0 {
            // Postgres borrows the days of the earlier timestamp's month.
            days += early.days_of_month();
            months -= 1;
        }
        Interval::checked(sign * months, sign * days, i128::from(sign * micros))
    }

    /// Returns the start of the bin that contains the timestamp. Bins of this length are aligned
    /// with `origin`.
    ///
    /// # Errors
    /// Fails as date_bin() does, and where its minor versions differ (`0A000`).
    pub fn binned(self, length: Interval, origin: Self) -> Result<Self, EvalError> {
        let out_of_range = |what: &str| EvalError::new("22008", format!("{what} out of range"));
        let unsure = |what: &'static str| EvalError::new("0A000", what);
        if !self.is_finite() {
            // Versions differ in the arguments that they check.
            let is_plain = origin.is_finite() && length.months == 0 && length > Interval::default();
            return if is_plain { Ok(self) } else { Err(unsure("bins of an infinite timestamp")) };
        }
        if !origin.is_finite() {
            return Err(out_of_range("origin"));
        }
        if length.months != 0 {
            return Err(unsure("timestamps cannot be binned into intervals containing months or years"));
        }
        let length = i128::from(length.days) * i128::from(MICROS_PER_DAY) + i128::from(length.micros);
        let difference = i128::from(self.0) - i128::from(origin.0);
        // Old minor versions don't detect the overflow.
        if [length, difference].iter().any(|span| i64::try_from(*span).is_err()) {
            return Err(unsure("bins so far apart"));
        }
        if length <= 0 {
            return Err(EvalError::new("22008", "stride must be greater than zero"));
        }
        if difference < 0 && difference % length == 0 && length > 1 {
            return Err(unsure("minor versions of Postgres 15 differ in bins before the origin"));
        }
        let start = i128::from(origin.0) + difference.div_euclid(length) * length;
        Timestamp::checked(start).ok_or_else(|| unsure("the bin of a timestamp near the end of time"))
    }
}
