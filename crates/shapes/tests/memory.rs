//! Memory of a shape without readers.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_pgoutput::Snapshot;
use forebay_shapes::filter::{Collation, Column, Schema};
use forebay_shapes::{
    LogMode, ReplicaMode, ShapeCreation, ShapeDefinition, ShapeOptions, Shapes, StoreConfig, TableSchema,
};

/// Number of allocated bytes of the process.
static ALLOCATED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// System allocator that counts allocated bytes.
struct CountingAllocator;

// SAFETY: all calls are passed to the system allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller satisfies the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller satisfies the same contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const SHAPES: usize = 2_000;

#[test]
fn an_idle_shape_takes_less_than_five_kilobytes() {
    let dir = std::env::temp_dir().join(format!("forebay-memory-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir); // left by a killed process with the same id
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let store = Shapes::open(StoreConfig::new(&dir)).unwrap();
    store.begin_writing().unwrap();
    runtime.block_on(store.reset("here".into(), 1000)).unwrap();
    let columns: Vec<_> = (0..12).map(|index| Column::new(&format!("column_{index}"), 23, "int4")).collect();
    let table = TableSchema {
        oid: 100,
        membership: 1,
        schema: "public".into(),
        name: "items".into(),
        stream_types: vec![(23, -1); columns.len()],
        notes: vec![String::new(); columns.len()],
        types: Schema { table: None, columns, database_collation: Collation::C, server_version: 15 },
        key: vec![0],
        numbers: Vec::new(),
        lineage: String::new(),
        key_is_deferrable: false,
        state: None,
    };
    let table = Arc::new(table);
    let make = |number: usize| {
        let clause = Some(format!("column_3 = {number} AND column_4 > 17"));
        let options =
            ShapeOptions { clause, columns: None, replica: ReplicaMode::Default, log: LogMode::Full };
        let definition = ShapeDefinition { table: Arc::clone(&table), options };
        let (_, creation) = store.find_or_create(definition, 1).unwrap();
        let mut creation = creation.unwrap();
        creation.follow();
        assert!(
            creation
                .snapshot_taken(&Snapshot { xmin: 700, xmax: 720, xip: (701..711).collect() }, 1000)
                .is_in_time()
        );
        creation.seal().unwrap();
        creation
    };
    let complete = |creations: Vec<ShapeCreation>| {
        runtime.block_on(async {
            for completed in
                creations.into_iter().map(|creation| tokio::spawn(creation.complete())).collect::<Vec<_>>()
            {
                completed.await.unwrap().unwrap();
            }
        });
    };
    // The first shape also allocates what all shapes share.
    complete(vec![make(SHAPES)]);
    runtime.block_on(store.checkpoint()).unwrap();
    let before = ALLOCATED_BYTES.load(Ordering::Relaxed);
    complete((0..SHAPES).map(make).collect());
    runtime.block_on(store.checkpoint()).unwrap();
    let each = (ALLOCATED_BYTES.load(Ordering::Relaxed) - before) / SHAPES;
    eprintln!("a shape takes {each} bytes");
    assert!(each < 5_000, "{each} bytes");
    store.end_writing();
    std::fs::remove_dir_all(&dir).unwrap();
}
