//! Long division of digits.

use super::decimal::BASE;

/// Divides (Knuth's algorithm D). Truncates the quotient to an integer.
pub(super) fn divide_digits(numerator: &[i32], divisor: &[i32]) -> Vec<i32> {
    if numerator.len() < divisor.len() {
        return Vec::new();
    }
    let base = i64::from(BASE);
    if let [single] = divisor {
        let mut rest = 0;
        let step = |digit: &i32| {
            let value = rest * base + i64::from(*digit);
            rest = value % i64::from(*single);
            (value / i64::from(*single)) as i32
        };
        return numerator.iter().map(step).collect();
    }
    let scale = base / (i64::from(divisor[0]) + 1);
    let divisor = times(divisor, scale, 0);
    let mut rest = times(numerator, scale, 1);
    let (top, second) = (divisor[0], divisor[1]);
    let mut quotient = Vec::with_capacity(numerator.len() - divisor.len() + 1);
    for at in 0..=numerator.len() - divisor.len() {
        let head = rest[at] * base + rest[at + 1];
        let (mut guess, mut left) = (head / top, head % top);
        while guess >= base || guess * second > left * base + rest[at + 2] {
            guess -= 1;
            left += top;
            if left >= base {
                break;
            }
        }
        if take(&mut rest[at..=at + divisor.len()], &divisor, guess) {
            guess -= 1;
            give_back(&mut rest[at..=at + divisor.len()], &divisor);
        }
        quotient.push(guess as i32);
    }
    quotient
}

/// Multiplies by a small number. The result has `room` more digits in front.
fn times(digits: &[i32], factor: i64, room: usize) -> Vec<i64> {
    let mut out = vec![0; digits.len() + room];
    let mut carry = 0;
    for (position, digit) in digits.iter().enumerate().rev() {
        let product = i64::from(*digit) * factor + carry;
        out[position + room] = product % i64::from(BASE);
        carry = product / i64::from(BASE);
    }
    if room > 0 {
        out[0] = carry;
    }
    out
}

/// Subtracts `divisor * guess`. Returns whether the result is negative.
fn take(rest: &mut [i64], divisor: &[i64], guess: i64) -> bool {
    let base = i64::from(BASE);
    let mut borrow = 0;
    for position in (0..rest.len()).rev() {
        let product = if position == 0 { 0 } else { divisor[position - 1] * guess };
        let value = rest[position] - product + borrow;
        rest[position] = value.rem_euclid(base);
        borrow = value.div_euclid(base);
    }
    borrow < 0
}

fn give_back(rest: &mut [i64], divisor: &[i64]) {
    let base = i64::from(BASE);
    let mut carry = 0;
    for position in (0..rest.len()).rev() {
        let value = rest[position] + if position == 0 { 0 } else { divisor[position - 1] } + carry;
        rest[position] = value % base;
        carry = value / base;
    }
}
