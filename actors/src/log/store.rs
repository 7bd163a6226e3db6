//! A folder of sealed segments with a manifest: what the trajectory log and the updates log have in common.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use parquet::errors::ParquetError;

use super::segment::{
    SegmentEntry, UnitEntry, is_temporary, part_name, part_number, read_rows, read_units, seal, sync_folder,
};
use crate::rows::RowError;

/// Name of the manifest within the log's folder.
pub(crate) const MANIFEST: &str = "_manifest.jsonl";

/// Name of the file that the writing process holds locked.
const LOCK: &str = ".lock";

/// A log actor that is restarted may meet the lock of the one that just failed, which goes when its state is dropped.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// How a log fails.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A segment cannot be written or read.
    #[error("segment {path}: {source}")]
    Segment {
        /// The segment's path.
        path: PathBuf,
        /// What is wrong with it.
        source: ParquetError,
    },
    /// Another process writes this log.
    #[error("{0} is being written by another process; wait until it ends, or use another run directory")]
    Locked(PathBuf),
    /// A segment that was acknowledged is not what it was.
    #[error("acknowledged segment {path} is damaged: {reason}; restore it from a copy, or start a new run directory")]
    Damaged {
        /// The segment's path.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
    /// Rows that the table does not take.
    #[error(transparent)]
    Row(#[from] RowError),
}

/// What an append did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The unit is now in a sealed segment.
    Sealed,
    /// A unit of that key was there; nothing was written.
    AlreadyThere,
}

/// What opening a log found to be repaired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Half-written files that were removed.
    pub removed: Vec<String>,
    /// Sealed segments that the manifest did not list and now does.
    pub adopted: Vec<String>,
    /// Unlisted segments that could not be taken up, and why; they were renamed so that no reader takes them.
    pub set_aside: Vec<(String, String)>,
    /// True where the end of the manifest was not a whole line and was dropped.
    pub manifest_cut: bool,
}

impl Recovery {
    /// True where there was nothing to repair.
    pub fn is_clean(&self) -> bool {
        *self == Recovery::default()
    }
}

/// Where a unit lies.
#[derive(Clone, Copy)]
struct Place {
    segment: usize,
    first_row: usize,
    rows: usize,
}

/// A folder of sealed segments, open for writing by this process alone.
pub(crate) struct SealedStore {
    root: PathBuf,
    schema: SchemaRef,
    /// Held locked for as long as the store is open; the system lets go of it when the process dies.
    _lock: File,
    manifest: File,
    /// Length of the manifest's whole lines: a line that could not be written is overwritten from here.
    manifest_bytes: u64,
    segments: Vec<SegmentEntry>,
    /// How many of `segments` the manifest lists; the rest are sealed but not acknowledged.
    listed: usize,
    places: HashMap<String, Place>,
    next_part: BTreeMap<String, u64>,
}

impl SealedStore {
    /// Opens or creates the log in `root` and repairs what a crash left.
    pub(crate) fn open(root: &Path, schema: SchemaRef) -> Result<(Self, Recovery), LogError> {
        create_folder(root)?;
        let lock = take_lock(root)?;
        let path = root.join(MANIFEST);
        let mut manifest =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(at(&path))?;
        let mut text = String::new();
        manifest.read_to_string(&mut text).map_err(at(&path))?;
        let (segments, manifest_bytes) = whole_lines(&text);
        let mut recovery = Recovery { manifest_cut: manifest_bytes != text.len() as u64, ..Recovery::default() };
        let mut store = Self {
            root: root.to_owned(),
            schema,
            _lock: lock,
            manifest,
            manifest_bytes,
            segments: Vec::new(),
            listed: 0,
            places: HashMap::new(),
            next_part: BTreeMap::new(),
        };
        for segment in segments {
            store.check_intact(&segment)?;
            store.index(segment);
        }
        store.listed = store.segments.len();
        store.recover_files(&mut recovery)?;
        store.list_segments()?;
        Ok((store, recovery))
    }

    /// Seals a unit in a segment of its own, unless its key is there.
    pub(crate) fn append(&mut self, partition: &str, key: &str, batch: &RecordBatch) -> Result<Appended, LogError> {
        // A unit that was sealed before the manifest refused it is acknowledged now, not written twice.
        self.list_segments()?;
        if self.places.contains_key(key) {
            return Ok(Appended::AlreadyThere);
        }
        let folder = self.root.join(partition);
        create_folder(&folder)?;
        let part = self.next_part.get(partition).copied().unwrap_or(0);
        let units = vec![UnitEntry { key: key.to_owned(), rows: batch.num_rows() }];
        let path = folder.join(part_name(part));
        let bytes = seal(&folder, part, &units, batch, &self.schema)
            .map_err(|source| LogError::Segment { path: path.clone(), source })?;
        let name = part_name(part);
        let file = if partition.is_empty() { name } else { format!("{partition}/{name}") };
        self.index(SegmentEntry { file, bytes, units });
        self.list_segments()?;
        Ok(Appended::Sealed)
    }

    /// True where a unit of that key is acknowledged.
    pub(crate) fn contains(&self, key: &str) -> bool {
        self.places.get(key).is_some_and(|place| place.segment < self.listed)
    }

    /// A unit's rows.
    pub(crate) fn read_unit(&self, key: &str) -> Result<Option<RecordBatch>, LogError> {
        let Some(place) = self.places.get(key) else { return Ok(None) };
        let path = self.root.join(&self.segments[place.segment].file);
        read_rows(&path, place.first_row, place.rows, None)
            .map(Some)
            .map_err(|source| LogError::Segment { path, source })
    }

    /// The acknowledged segments in the order in which they were sealed.
    pub(crate) fn segments(&self) -> &[SegmentEntry] {
        &self.segments[..self.listed]
    }

    /// The log's folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn index(&mut self, segment: SegmentEntry) {
        let mut first_row = 0;
        for unit in &segment.units {
            let place = Place { segment: self.segments.len(), first_row, rows: unit.rows };
            self.places.insert(unit.key.clone(), place);
            first_row += unit.rows;
        }
        let next = self.next_part.entry(segment.partition().to_owned()).or_default();
        *next = (*next).max(segment.part().map_or(0, |part| part + 1));
        self.segments.push(segment);
    }

    /// Writes a line for every sealed segment that lacks one.
    fn list_segments(&mut self) -> Result<(), LogError> {
        if self.listed == self.segments.len() {
            return Ok(());
        }
        let mut lines = String::new();
        for segment in &self.segments[self.listed..] {
            lines += &serde_json::to_string(segment).expect("an entry is plain JSON");
            lines.push('\n');
        }
        let path = self.root.join(MANIFEST);
        let mut write = || -> io::Result<()> {
            self.manifest.set_len(self.manifest_bytes)?;
            self.manifest.seek(SeekFrom::Start(self.manifest_bytes))?;
            self.manifest.write_all(lines.as_bytes())?;
            self.manifest.sync_all()
        };
        write().map_err(at(&path))?;
        self.manifest_bytes += lines.len() as u64;
        self.listed = self.segments.len();
        Ok(())
    }

    fn check_intact(&self, segment: &SegmentEntry) -> Result<(), LogError> {
        let path = self.root.join(&segment.file);
        let damaged = |reason: String| LogError::Damaged { path: path.clone(), reason };
        match fs::metadata(&path) {
            Ok(found) if found.len() == segment.bytes => Ok(()),
            Ok(found) => Err(damaged(format!("it has {} bytes, not {}", found.len(), segment.bytes))),
            Err(e) => Err(damaged(e.to_string())),
        }
    }

    fn recover_files(&mut self, recovery: &mut Recovery) -> Result<(), LogError> {
        let mut unlisted = Vec::new();
        for partition in partitions(&self.root)? {
            let folder = self.root.join(&partition);
            for name in names(&folder)? {
                let file = if partition.is_empty() { name.clone() } else { format!("{partition}/{name}") };
                if is_temporary(&name) {
                    fs::remove_file(folder.join(&name)).map_err(at(&folder))?;
                    recovery.removed.push(file);
                } else if let Some(part) = part_number(&name)
                    && !self.segments.iter().any(|s| s.file == file)
                {
                    unlisted.push((partition.clone(), part, file));
                }
            }
        }
        unlisted.sort();
        for (partition, part, file) in unlisted {
            let path = self.root.join(&file);
            let problem = match read_units(&path) {
                Ok(units) => match units.iter().find(|u| self.places.contains_key(&u.key)) {
                    Some(unit) => format!("unit {:?} is in another segment", unit.key),
                    None => {
                        let bytes = fs::metadata(&path).map_err(at(&path))?.len();
                        self.index(SegmentEntry { file: file.clone(), bytes, units });
                        recovery.adopted.push(file);
                        continue;
                    }
                },
                Err(e) => e.to_string(),
            };
            let aside = self.root.join(&partition).join(format!(".part-{part:05}.set-aside"));
            fs::rename(&path, &aside).map_err(at(&path))?;
            recovery.set_aside.push((file, problem));
        }
        Ok(())
    }
}

/// The whole lines of a manifest, and their length in bytes.
pub(crate) fn whole_lines(text: &str) -> (Vec<SegmentEntry>, u64) {
    let mut segments = Vec::new();
    let mut bytes = 0;
    for line in text.split_inclusive('\n') {
        let Some(entry) = line.strip_suffix('\n').and_then(|l| serde_json::from_str(l).ok()) else { break };
        segments.push(entry);
        bytes += line.len() as u64;
    }
    (segments, bytes)
}

/// Turns an I/O error into one that says where.
pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> LogError + '_ {
    move |source| LogError::Io { path: path.to_owned(), source }
}

fn take_lock(root: &Path) -> Result<File, LogError> {
    let path = root.join(LOCK);
    let lock = OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(at(&path))?;
    let begin = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) if begin.elapsed() < LOCK_PATIENCE => {
                thread::sleep(Duration::from_millis(10))
            }
            Err(TryLockError::WouldBlock) => return Err(LogError::Locked(root.to_owned())),
            Err(TryLockError::Error(source)) => return Err(LogError::Io { path, source }),
        }
    }
}

/// Creates a folder whose name survives a crash.
fn create_folder(folder: &Path) -> Result<(), LogError> {
    if folder.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(folder).map_err(at(folder))?;
    let parent = folder.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    sync_folder(parent).map_err(at(parent))
}

fn names(folder: &Path) -> Result<Vec<String>, LogError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let entry = entry.map_err(at(folder))?;
        if entry.file_type().map_err(at(folder))?.is_file() {
            names.extend(entry.file_name().into_string());
        }
    }
    names.sort();
    Ok(names)
}

/// The log's own folder (as "") and its `key=value` subfolders.
fn partitions(root: &Path) -> Result<Vec<String>, LogError> {
    let mut found = vec![String::new()];
    for entry in fs::read_dir(root).map_err(at(root))? {
        let entry = entry.map_err(at(root))?;
        if entry.file_type().map_err(at(root))?.is_dir() {
            found.extend(entry.file_name().into_string().ok().filter(|name| name.contains('=')));
        }
    }
    found.sort();
    Ok(found)
}
