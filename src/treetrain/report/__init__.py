"""Results in words, tables and pictures; sees trees and figures, never models."""
