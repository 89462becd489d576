//! Line plot as PNG: numbers over time.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::ZlibEncoder;

const WIDTH: usize = 960;
const HEIGHT: usize = 360;
const MARGIN: usize = 40;
const WHITE: [u8; 3] = [255, 255, 255];
const GREY: [u8; 3] = [210, 210, 215];

/// One line of a plot.
pub(super) struct PlotLine {
    pub(super) colour: [u8; 3],
    /// One value for each sample.
    pub(super) values: Vec<f64>,
}

/// Draws the lines. Each has its own scale, from 0 at the bottom to its largest value at the top.
///
/// `marks`: samples with a vertical line.
pub(super) fn draw_png(lines: &[PlotLine], marks: &[usize]) -> Vec<u8> {
    let mut pixels = vec![WHITE; WIDTH * HEIGHT];
    let mut set = |x: usize, y: usize, colour| {
        if x < WIDTH && y < HEIGHT {
            pixels[y * WIDTH + x] = colour;
        }
    };
    let (wide, high) = ((WIDTH - 2 * MARGIN) as f64, (HEIGHT - 2 * MARGIN) as f64);
    let samples = lines.iter().map(|line| line.values.len()).max().unwrap_or(0);
    let x_of = |sample: f64| MARGIN as f64 + wide * sample / (samples.max(2) - 1) as f64;
    for quarter in 0..=4 {
        let y = MARGIN + (high * f64::from(quarter) / 4.0) as usize;
        (MARGIN..WIDTH - MARGIN).for_each(|x| set(x, y, GREY));
    }
    for mark in marks {
        let x = x_of(*mark as f64) as usize;
        (MARGIN..HEIGHT - MARGIN).step_by(3).for_each(|y| set(x, y, GREY));
    }
    for line in lines {
        let top = line.values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let y_of = |value: f64| HEIGHT as f64 - MARGIN as f64 - high * value / top;
        for (sample, pair) in line.values.windows(2).enumerate() {
            // Many small steps instead of a line algorithm: a plot is drawn once.
            for step in 0..=400 {
                let part = f64::from(step) / 400.0;
                let (x, y) = (x_of(sample as f64 + part), y_of(pair[0] + (pair[1] - pair[0]) * part));
                set(x as usize, y as usize, line.colour);
                set(x as usize, y as usize + 1, line.colour);
            }
        }
    }
    encode(&pixels)
}

/// Encodes rows of RGB pixels as PNG.
fn encode(pixels: &[[u8; 3]]) -> Vec<u8> {
    let mut raw = Vec::with_capacity(HEIGHT * (1 + 3 * WIDTH));
    for row in pixels.chunks(WIDTH) {
        raw.push(0);
        row.iter().for_each(|pixel| raw.extend(pixel));
    }
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::default());
    packed.write_all(&raw).unwrap();
    let mut head = [WIDTH as u32, HEIGHT as u32].map(u32::to_be_bytes).concat();
    head.extend([8, 2, 0, 0, 0]);
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in [(b"IHDR", head), (b"IDAT", packed.finish().unwrap()), (b"IEND", Vec::new())] {
        let mut checked = flate2::Crc::new();
        checked.update(kind);
        checked.update(&data);
        png.extend((data.len() as u32).to_be_bytes());
        png.extend(kind);
        png.extend(&data);
        png.extend(checked.sum().to_be_bytes());
    }
    png
}
